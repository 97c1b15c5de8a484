"""llama-server's command line for the llama.cpp that the xllamacpp wheel carries: llama.cpp's own HTTP server, in this
process.

Takes llama-server's flags, as many of them as the library has settings for; an unknown one is an error. The key comes
from LLAMA_API_KEY, where nobody sees it.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

Setter = Callable[[Any, str], None]


def setting(path: str, convert: Callable[[str], Any] = str) -> Setter:
    """Sets one setting, given by its path."""

    def apply(params: Any, text: str) -> None:
        *outer, last = path.split(".")
        target = params
        for name in outer:
            target = getattr(target, name)
        setattr(target, last, convert(text))

    return apply


def choice(path: str, enum: str, prefix: str) -> Setter:
    """Sets one of the library's enumerations by the word that llama-server uses for it."""

    def apply(params: Any, text: str) -> None:
        import xllamacpp

        known = getattr(xllamacpp, enum).__members__
        name = next((name for name in known if name.lower() == f"{prefix}{text}".lower()), None)
        if name is None:
            words = ", ".join(sorted(name.removeprefix(prefix).lower() for name in known if name.startswith(prefix)))
            raise ValueError(f"{text!r}: choose one of {words}")
        setting(path, lambda _: known[name])(params, text)

    return apply


def both_timeouts(params: Any, text: str) -> None:
    params.timeout_read = params.timeout_write = int(text)


def template_file(params: Any, text: str) -> None:
    with open(text, encoding="utf-8") as file:
        params.chat_template = file.read()


VALUES: dict[tuple[str, ...], Setter] = {
    ("-m", "--model"): setting("model.path"),
    ("-a", "--alias"): setting("model_alias", lambda text: set(text.split(","))),
    ("--host",): setting("hostnames", lambda text: [text]),
    ("--port",): setting("port", int),
    ("-c", "--ctx-size"): setting("n_ctx", int),
    ("-np", "--parallel"): setting("n_parallel", int),
    ("-b", "--batch-size"): setting("n_batch", int),
    ("-ub", "--ubatch-size"): setting("n_ubatch", int),
    ("-t", "--threads"): setting("cpuparams.n_threads", int),
    ("-tb", "--threads-batch"): setting("cpuparams_batch.n_threads", int),
    ("--threads-http",): setting("n_threads_http", int),
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): setting("n_gpu_layers", int),
    ("-mg", "--main-gpu"): setting("main_gpu", int),
    ("-fa", "--flash-attn"): choice("flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
    ("-ctk", "--cache-type-k"): choice("cache_type_k", "ggml_type", "GGML_TYPE_"),
    ("-ctv", "--cache-type-v"): choice("cache_type_v", "ggml_type", "GGML_TYPE_"),
    ("--pooling",): choice("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_"),
    ("--cache-ram",): setting("cache_ram_mib", int),
    ("--keep",): setting("n_keep", int),
    ("--slot-save-path",): setting("slot_save_path"),
    ("-sps", "--slot-prompt-similarity"): setting("slot_prompt_similarity", float),
    ("--sleep-idle-seconds",): setting("sleep_idle_seconds", int),
    ("--chat-template",): setting("chat_template"),
    ("--chat-template-file",): template_file,
    ("-to", "--timeout"): both_timeouts,
    ("-lv", "--verbosity"): setting("verbosity", int),
}

SWITCHES: dict[tuple[str, ...], tuple[tuple[str, bool], ...]] = {
    ("--metrics",): (("endpoint_metrics", True),),
    ("--props",): (("endpoint_props", True),),
    ("--slots",): (("endpoint_slots", True),),
    ("--no-slots",): (("endpoint_slots", False),),
    ("--jinja",): (("use_jinja", True),),
    ("--no-jinja",): (("use_jinja", False),),
    ("--no-webui",): (("ui", False),),
    ("--offline",): (("offline", True),),
    ("-kvu", "--kv-unified"): (("kv_unified", True),),
    ("--no-kv-unified",): (("kv_unified", False),),
    ("--embedding", "--embeddings"): (("embedding", True),),
    ("-cb", "--cont-batching"): (("cont_batching", True),),
    ("--no-cont-batching",): (("cont_batching", False),),
    ("--context-shift",): (("ctx_shift", True),),
    ("--no-context-shift",): (("ctx_shift", False),),
    ("--swa-full",): (("swa_full", True),),
    ("--no-warmup",): (("warmup", False),),
    ("--check-tensors",): (("check_tensors", True),),
    ("--no-kv-offload",): (("no_kv_offload", True),),
}


def print_help() -> None:
    print("-h,    --help")
    print("       --version")
    for names in (*VALUES, *SWITCHES):
        print(", ".join(names), "VALUE" if names in VALUES else "")


def configure(params: Any, words: list[str]) -> None:
    """Apply the command line.

    Raises:
        ValueError: an unknown flag, or a value that does not fit.
    """
    values = {name: apply for names, apply in VALUES.items() for name in names}
    switches = {name: settings for names, settings in SWITCHES.items() for name in names}
    rest = iter(words)
    for word in rest:
        if word in switches:
            for name, value in switches[word]:
                setattr(params, name, value)
        elif word in values:
            text = next(rest, None)
            if text is None:
                raise ValueError(f"{word} needs a value")
            try:
                values[word](params, text)
            except (ValueError, OSError) as error:
                raise ValueError(f"{word}: {error}") from None
        else:
            raise ValueError(f"unknown argument: {word}")


def main(words: list[str]) -> int:
    if words[:1] in (["-h"], ["--help"]):
        print_help()
        return 0
    import xllamacpp

    if words[:1] == ["--version"]:
        print(f"version: llama.cpp of xllamacpp {xllamacpp.__version__}")
        return 0
    params = xllamacpp.CommonParams()
    if key := os.environ.pop("LLAMA_API_KEY", ""):
        params.api_keys = [key]
    try:
        configure(params, words)
        server = xllamacpp.Server(params)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"main: server is listening on {server.listening_address}", file=sys.stderr, flush=True)
    while True:
        signal.pause()  # SIGTERM ends the process as it is: llama.cpp holds nothing that has to be saved


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
