"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll("[data-figure]")];

  let printing = false;

  function draw(box) {
    if (box.closest("[hidden]")) return;
    const figure = figures[Number(box.dataset.figure)];
    if (!figure.data.length) return;
    const style = getComputedStyle(document.documentElement);
    const text = printing ? "#1b2230" : style.getPropertyValue("--text").trim();
    const line = printing ? "#dfe3ea" : style.getPropertyValue("--line").trim();
    const layout = structuredClone(figure.layout);
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {color: text, family: style.fontFamily, size: 13},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: line, activecolor: text},
      hoverlabel: {bgcolor: style.getPropertyValue("--card").trim(), font: {color: text}},
    });
    if (box.clientWidth < 600) {
      layout.margin.b += 22 * figure.data.filter((trace) => trace.showlegend !== false).length;
      layout.height += layout.margin.b - figure.layout.margin.b;
    }
    box.style.height = `${layout.height}px`;  // else it collapses when the window changes its width
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) Object.assign(layout[key], {gridcolor: line, linecolor: line});
    }
    Plotly.react(box, structuredClone(figure.data), layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: "hover",
      modeBarButtons: [["toImage", "resetScale2d"]],
    });
  }

  const chooser = document.getElementById("point");
  function choose() {
    for (const section of document.querySelectorAll("[data-point]")) {
      section.hidden = section.dataset.point !== chooser.value;
    }
    charts.forEach(draw);
  }

  if (chooser) {
    document.getElementById("chooser").hidden = false;
    chooser.addEventListener("change", choose);
    choose();
  } else {
    charts.forEach(draw);
  }
  dark.addEventListener("change", () => charts.forEach(draw));
  for (const select of document.querySelectorAll("[data-chart]")) {
    select.closest(".choice").hidden = false;
    select.addEventListener("change", () => {
      const box = select.closest("section").querySelector(".chart");
      box.dataset.figure = select.value;
      draw(box);
    });
  }

  const rows = document.getElementById("attacks") && attacks();
  for (const [name, now] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      printing = now;
      charts.forEach(draw);
      if (rows) rows(now);
    });
  }

  // A table of all attacks, of which the page holds the rows in view alone.
  function attacks() {
    const HEIGHT = 36, MORE = 12, PRINTED = 200;
    const section = document.getElementById("attacks");
    const data = JSON.parse(document.getElementById("attack-data").textContent);
    const [box, body] = [".rows", "tbody"].map((one) => section.querySelector(one));
    const form = document.getElementById("filters");
    const parts = [...document.querySelectorAll("[data-label]")];
    const galleries = [...document.querySelectorAll("[data-label]:has(figure)")];
    const titles = {point: "Point", seed: "Seed", round: "Round", client: "Client",
                    label: "Adversary", status: "Outcome"};
    const names = Object.keys(titles).filter((name) =>
      data.facets[name].values.length > 1 || !["point", "seed"].includes(name));
    const selects = {};
    for (const name of names) {
      const label = form.appendChild(document.createElement("label"));
      label.append(titles[name]);
      const select = label.appendChild(document.createElement("select"));
      select.append(new Option("all", -1));
      data.facets[name].values.forEach((value, place) => select.append(new Option(value || "–", place)));
      select.addEventListener("change", choose);
      selects[name] = select;
    }
    for (const title of [...names.map((name) => titles[name]), "Scores, or why not"]) {
      const head = section.querySelector("thead tr").appendChild(document.createElement("th"));
      head.scope = "col";
      head.textContent = title;
    }
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    let chosen = [];

    function choose() {
      const picked = names.filter((name) => Number(selects[name].value) >= 0);
      const wanted = picked.map((name) => [data.facets[name].of, Number(selects[name].value)]);
      chosen = [];
      for (let at = 0; at < data.count; at++) {
        if (wanted.every(([of, value]) => of[at] === value)) chosen.push(at);
      }
      filter(picked);
      const pictures = document.querySelectorAll("figure:not([hidden], [hidden] *)").length;
      section.querySelector("[role=status]").textContent = chosen.length === data.count ?
        `${data.count} attacks; they are in findings.csv too.` :
        `${chosen.length} of ${data.count} attacks, with ${pictures} of the page's pictures.`;
      box.scrollTop = 0;
      show();
    }

    // Pictures, reasons and tables of other attacks disappear; verdicts and curves stay.
    function filter(picked) {
      for (const part of parts) {
        part.hidden = picked.some((name) => name in part.dataset &&
          part.dataset[name] !== data.facets[name].values[Number(selects[name].value)]);
      }
      for (const gallery of galleries) {
        gallery.hidden ||= !gallery.querySelector("figure:not([hidden])");
      }
      for (const more of document.querySelectorAll("section details:has(figure)")) {
        more.open ||= picked.length > 0;
      }
    }

    function score(one, value) {
      if (typeof value === "string") return value;
      if (one.kind === "yes/no" && (value === 0 || value === 1)) return value ? "yes" : "no";
      const digits = (number) => String(Number(number.toPrecision(3)));
      return one.kind === "number" ? digits(value) + one.unit : `${digits(100 * value)} %`;
    }

    function words(at) {
      const scores = data.scores.filter((one) => one.values[at] !== null)
        .map((one) => `${one.title} ${score(one, one.values[at])}`);
      return scores.join(", ") || data.messages[data.why[at]] || "–";
    }

    function spacer(rows) {
      const row = document.createElement("tr");
      row.style.height = `${rows * HEIGHT}px`;
      row.setAttribute("aria-hidden", "true");
      return row;
    }

    function show(all = false) {
      const first = all ? 0 : Math.max(0, Math.floor(box.scrollTop / HEIGHT) - MORE);
      const last = Math.min(chosen.length,
        all ? PRINTED : first + Math.ceil(box.clientHeight / HEIGHT) + 2 * MORE);
      const shown = chosen.slice(first, last).map((at, place) => {
        const row = document.createElement("tr");
        row.setAttribute("aria-rowindex", first + place + 2);
        for (const name of names) {
          const {values, of} = data.facets[name];
          row.insertCell().textContent = values[of[at]] || "–";
        }
        row.insertCell().textContent = words(at);
        return row;
      });
      body.replaceChildren(...(all ? shown :
        [spacer(first), ...shown, spacer(chosen.length - last)]));
    }

    section.querySelector("table").setAttribute("aria-rowcount", data.count + 1);
    box.addEventListener("scroll", () => requestAnimationFrame(() => show()));
    choose();
    return show;
  }
})();
