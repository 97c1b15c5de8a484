"""How far the estimate of tokens is from what an engine's own tokenizer counts, as a table for docs/tokens.md.

    python benches/token_error.py [--host ADDRESS] MODEL

asks a running gateway's engine for the model. The texts are in benches/texts; the code is a module of this project.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import httpx

from blazar._fast.tokens import estimate_text

HERE = Path(__file__).parent
TEXTS = {
    "English prose": HERE / "texts/english.txt",
    "Russian prose": HERE / "texts/russian.txt",
    "Chinese prose": HERE / "texts/chinese.txt",
    "Python code": HERE.parent / "blazar/admission/keys.py",
    "JSON": HERE / "texts/json.txt",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="the error of the token estimate, by kind of text")
    parser.add_argument("model")
    parser.add_argument("--host", default="http://127.0.0.1:11435")
    options = parser.parse_args()
    print("| text | bytes | tokens | estimate | error |\n|---|---|---|---|---|")
    for name, path in TEXTS.items():
        text = path.read_text()
        ask = {"model": options.model, "content": text}
        answer = httpx.post(f"{options.host}/tokenize", json=ask, timeout=60)
        answer.raise_for_status()
        tokens, estimate = len(answer.json()["tokens"]), estimate_text(text.encode())
        print(f"| {name} | {len(text.encode())} | {tokens} | {estimate} | {estimate / tokens - 1:+.0%} |")


if __name__ == "__main__":
    main()
