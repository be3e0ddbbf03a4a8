#!/usr/bin/env python3
"""A prompt of 16,000 tokens, its state in a file, and 500 tokens after it, in libllama. Needs the package llama-cpp-python.

    llama_state.py save GGUF STATE    reads the prompt, saves its state, reads 500 more
    llama_state.py load GGUF STATE    loads the state, reads 500 more

The counterpart of `restarted.py turns`; run it under limited.py. Weights are mapped and not repacked: repacked ones would
take memory beyond a limit.
"""
import ctypes
import random
import sys
import time

import llama_cpp as llama

N_PROMPT, N_MORE, N_CONTEXT, N_BATCH, N_THREADS, VOCAB = 16000, 500, 20480, 512, 2, 4096


def context_of(gguf):
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.use_mmap, params.n_gpu_layers, params.use_extra_bufts = True, 0, False
    model = llama.llama_model_load_from_file(gguf.encode(), params)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = N_CONTEXT, N_BATCH, N_BATCH
    params.n_threads = params.n_threads_batch = N_THREADS
    return llama.llama_init_from_model(model, params)


def read(context, tokens, first):
    batch = llama.llama_batch_init(N_BATCH, 0, 1)
    for begin in range(0, len(tokens), N_BATCH):
        part = tokens[begin:begin + N_BATCH]
        batch.n_tokens = len(part)
        for idx, token in enumerate(part):
            batch.token[idx], batch.pos[idx] = token, first + begin + idx
            batch.n_seq_id[idx], batch.seq_id[idx][0] = 1, 0
            batch.logits[idx] = begin + idx == len(tokens) - 1
        if status := llama.llama_decode(context, batch):
            raise SystemExit(f"llama_decode: {status}")


def main(mode, gguf, state):
    draw = random.Random(7)
    text = [draw.randrange(VOCAB) for _ in range(N_PROMPT + N_MORE)]
    context = context_of(gguf)
    began = time.perf_counter()
    if mode == "save":
        read(context, text[:N_PROMPT], 0)
        print(f"{N_PROMPT} tokens {time.perf_counter() - began:.1f} s", flush=True)
        tokens = (llama.llama_token * N_PROMPT)(*text[:N_PROMPT])
        print("bytes saved:", llama.llama_state_seq_save_file(context, state.encode(), 0, tokens, N_PROMPT))
        began = time.perf_counter()
    else:
        tokens, n_tokens = (llama.llama_token * N_CONTEXT)(), ctypes.c_size_t()
        n_bytes = llama.llama_state_seq_load_file(context, state.encode(), 0, tokens, N_CONTEXT, ctypes.byref(n_tokens))
        print(f"{n_bytes} bytes of {n_tokens.value} tokens loaded after {time.perf_counter() - began:.2f} s")
    read(context, text[N_PROMPT:], N_PROMPT)
    print(f"{N_MORE} tokens more after {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("save", "load"):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
