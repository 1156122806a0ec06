"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll("[data-figure]")];

  function draw(box) {
    if (box.closest("[hidden]")) return;
    const figure = figures[Number(box.dataset.figure)];
    if (!figure.data.length) return;
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const line = style.getPropertyValue("--line").trim();
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
})();
