"""The same app, unchanged, on Flower's deployment engine: real processes, TLS, known nodes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.flower import free_ports, needs_proc, processes, wait_for
from support.tiny import timeless

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

ROOT = Path(__file__).parents[2]
OVERRIDES = "training.rounds=2 adversaries.1.iterations=2 adversaries.1.restarts=0"
PEM, SSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH


def certificate(key, name, signer, issuer, *, authority=False):
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    named, signed = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in (name, issuer)
    )
    made = (
        x509.CertificateBuilder(issuer_name=signed, subject_name=named)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    )
    return made.sign(signer, hashes.SHA256()).public_bytes(PEM)


def private(key, form):
    return key.private_bytes(*form, serialization.NoEncryption())


def new_key():
    return ec.generate_private_key(ec.SECP384R1())


def write_keys(folder: Path, nodes: int) -> None:
    """An authority, a certificate of the SuperLink, and a pair of keys for each SuperNode."""
    authority, server = new_key(), new_key()
    root = certificate(authority, "authority", authority, "authority", authority=True)
    (folder / "ca.crt").write_bytes(root)
    (folder / "server.crt").write_bytes(certificate(server, "server", authority, "authority"))
    form = PEM, serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "server.key").write_bytes(private(server, form))
    for node in range(nodes):
        key = new_key()
        (folder / f"node{node}").write_bytes(
            private(key, (PEM, serialization.PrivateFormat.OpenSSH))
        )
        public = key.public_key().public_bytes(SSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node{node}.pub").write_bytes(public)


@needs_proc
def test_two_supernodes_with_tls_and_keys_find_what_the_simulation_finds(tmp_path):
    link, *ports = free_ports(4)
    address, trust = f"127.0.0.1:{link}", ("--root-certificates", str(tmp_path / "ca.crt"))
    write_keys(tmp_path, nodes=3)
    with processes(tmp_path) as flower:
        flower.superlink(f'address = "{address}"\nroot-certificates = "{tmp_path / "ca.crt"}"')
        tls = ("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")
        files = [part for flag, file in tls for part in (f"--ssl-{flag}", str(tmp_path / file))]
        where = ("--host", "127.0.0.1", "--port", str(link))
        flower.begin(
            *("flower-superlink", *where, *files, "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
        )
        wait_for(link)
        for node in range(2):  # the key of the third one is not known
            key = str(tmp_path / f"node{node}.pub")
            flower.run("flwr", "supernode", "register", key, "here", seconds=60)
        for node, port in enumerate(ports):
            flower.begin(
                *("flower-supernode", *trust, "--superlink", address, "--port", str(port)),
                *("--auth-supernode-private-key", str(tmp_path / f"node{node}")),
                *("--node-config", f"partition-id={min(node, 1)} num-partitions=2"),
            )
        config = f'overrides="{OVERRIDES}" out="{tmp_path / "run"}" supernodes=2'
        command = ("flwr", "run", str(ROOT), "here", "--stream", "--run-config", config)
        flower.run(*command, seconds=240)
    assert "report:" in flower.said(), flower.said()[-3000:]
    assert "2 of 2 SuperNodes are connected" in flower.said()
    overrides = [*OVERRIDES.split(), "training.clients=2", "training.clients_per_round=2"]
    simulate(Scenario.load("first-rounds", overrides), tmp_path / "alone")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "alone")
