"""Starts the gateway for the measuring lab: a real `blazar serve`, with a key, trace ids, logs and supervision on.

The lab's engine (`$LAB_ENGINE`) is installed like any local engine and runs as a supervised child. Prints the lab's
first line, then becomes a quiet parent: SIGTERM goes on to the gateway.

    LAB/compare --gateway 'python benches/lab_gateway.py'

With `--limits` the key has every limit there is (none of which the lab reaches), and preflight and single-flight are
on; without it, neither: the difference is what they cost.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf import GGUFWriter

MODEL = "lab"
PLAIN = "singleflight = false\nprompt_preflight = false\n"
LIMITS = "rpm = 1000000000\ntpm = 1000000000000\ndaily_tokens = 1000000000000\nmax_concurrent = 100000\nweight = 3\n"


def write_model(path: Path) -> None:
    """The smallest file that passes as a model: the lab's engine opens none."""
    import numpy as np

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(131072)
    writer.add_tensor("token_embd.weight", np.zeros((32, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="blazar-lab-") as folder:
        root = Path(folder)
        key = secrets.token_hex(16)
        config = root / "config.toml"
        slots = os.environ.get("LAB_SLOTS", "512")
        limits = "--limits" in sys.argv[1:]
        config.write_text(
            (PLAIN if not limits else "")
            + f'port = 0\nmax_queue = 4096\n[[keys]]\nname = "lab"\nkey = "{key}"\n'
            + (LIMITS if limits else "")
            + f"[model_overrides.{MODEL}]\nslots = {slots}\n"
        )
        environment = {**os.environ, "BLAZAR_CONFIG": str(config), "BLAZAR_DATA_DIR": str(root / "data")}
        blazar = [sys.executable, "-m", "blazar"]
        model = root / "lab.gguf"
        write_model(model)
        for step in (
            ["engine", "install", "--kind", "llamacpp", "--from", os.environ["LAB_ENGINE"]],
            ["import", str(model), "--name", MODEL],
        ):
            subprocess.run([*blazar, *step], env=environment, check=True, stdout=sys.stderr)
        gateway = subprocess.Popen([*blazar, "serve"], env=environment, stdout=subprocess.PIPE, text=True)
        assert gateway.stdout is not None
        url = gateway.stdout.readline().split()[-1]
        print(json.dumps({"url": url, "key": key, "model": MODEL, "pid": gateway.pid}), flush=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: gateway.terminate())
        return gateway.wait()


if __name__ == "__main__":
    sys.exit(main())
