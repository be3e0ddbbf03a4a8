#!/usr/bin/env bash
# rounds.sh WORKDIR MOEFLUX OUT [STEP...]: all that benches/record says of moeflux beside llama.cpp, step by step, into OUT/STEP.txt.
#
# WORKDIR is that of build_llama.sh (for `avx2` both builds); models and twins that are missing there are made. Needs root, 50 GB for
# all steps, and an idle machine; `taskset -c 0-1` before it gives two cores of more. Steps, of two threads unless they say otherwise:
#   resident one qwen3_moe deepseek_v3 avx2   answers of 64, prompts of 512, all in memory (one: by one thread)
#   context prompt                            answers after 8,192 tokens, prompts of 8,192 (half an hour where llama.cpp reads 100 a second)
#   stream packed stream8g                    answers with 1,024 MB (8g: 2,048) for all, in place and packed
#   prompts                                   prompts of 512 and 2,048 with 1,024 MB
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(realpath "$(dirname "$0")"); configs=$(realpath "$here/../../crates/moeflux/tests/data/configs")
mkdir -p "$1" "$3"; work=$(realpath "$1"); moeflux=$(realpath "$2"); out=$(realpath "$3"); shift 3
steps=("$@")
[ ${#steps[@]} -gt 0 ] ||
  steps=(resident one qwen3_moe deepseek_v3 avx2 context prompt stream packed stream8g prompts)
python=$work/ve-build/bin/python
[ -x "$python" ] || python=python3

# synth NAME [POSITIONS]: a random model of configs/NAME, of other positions as NAME-long.
synth() {
  local name=$1 config=$configs/$1.json
  if [ $# -gt 1 ]; then
    name=$1-long
    sed "s/\"max_position_embeddings\": *[0-9]*/\"max_position_embeddings\": $2/" "$config" > "$work/$name.json"
    config=$work/$name.json
  fi
  [ -f "$work/$name/config.json" ] || "$moeflux" synth --config "$config" --out "$work/$name" --bits 4 --group 64 >&2
  printf '%s/%s' "$work" "$name"
}

# twin ARCH QUANT LAYERS EXPERTS: the same geometry for llama.cpp.
twin() {
  local file=$work/$1-$2-$3x$4.gguf
  [ -f "$file" ] || "$python" "$here/mkmoe.py" "$1" "$2" "$file" "$3" "$4" >&2
  printf '%s' "$file"
}

# turns MODEL ARCH LAYERS ARGUMENT...: side_by_side.py with both of llama.cpp's forms.
turns() {
  local model=$1 arch=$2 n_layers=$3
  shift 3
  "$python" "$here/side_by_side.py" --work "$work" --moeflux "$moeflux" --model "$model" --rounds 3 --threads 2 \
    --gguf "$(twin "$arch" q4_0 "$n_layers" 128)" --gguf "$(twin "$arch" q4_k "$n_layers" 128)" "$@"
}

# streamed MODEL LIMIT N_TOKENS TWIN: answers, with llama.cpp's best read-ahead.
streamed() {
  local dir
  dir=$("$here/loop_readahead.sh" start "$work/loop" 128 "$4") || return 1
  "$python" "$here/side_by_side.py" --work "$work" --moeflux "$moeflux" --model "$1" --limit "$2" --memory "$2" \
    --threads 2 --rounds 2 --repeat 2 --prompt-tokens 0 --gen-tokens "$3" --gguf "$dir/$(basename "$4")" || true
  "$here/loop_readahead.sh" stop "$work/loop"
}

# long_prompt LIMIT N_TOKENS: in turn, llama.cpp by steps of as many tokens as it takes.
long_prompt() {
  local model gguf
  model=$(synth q35moe-2g) gguf=$(twin qwen35moe q4_k 8 128)
  for _ in 1 2 3; do
    "$python" "$here/limited.py" --limit "$1" --model "$model" -- "$moeflux" bench --model "$model" --memory "$1" \
      --prompt-tokens "$2" --gen-tokens 0 --repeat 1 --threads 2 --json
    "$python" "$here/limited.py" --limit "$1" --model "$gguf" -- "$work/llama/build/bin/llama-bench" -m "$gguf" -t 2 \
      -r 1 --repack 0 -b 2048 -ub 2048 -p "$2" -n 0 -o jsonl
  done
}

run() {
  case $1 in
  resident) turns "$(synth q35moe-2g)" qwen35moe 8 ;;
  one) turns "$(synth q35moe-2g)" qwen35moe 8 --threads 1 ;;
  qwen3_moe) turns "$(synth q3moe-2g)" qwen3moe 6 ;;
  deepseek_v3) turns "$(synth dsv3-2g)" deepseek2 9 ;;
  avx2) turns "$(synth q35moe-2g)" qwen35moe 8 --llama-build build-avx2 --arg=--isa --arg=avx2 ;;
  context) turns "$(synth q35moe-2g 65536)" qwen35moe 8 --context-tokens 8192 --prompt-tokens 0 --gen-tokens 32 --rounds 2 ;;
  prompt) turns "$(synth q35moe-2g 65536)" qwen35moe 8 --prompt-tokens 8192 --gen-tokens 0 --rounds 2 ;;
  stream) streamed "$(synth q35moe-2g)" 1024M 64 "$(twin qwen35moe q4_k 8 128)" ;;
  packed)
    [ -d "$work/q35moe-2g-packed" ] || "$moeflux" pack "$(synth q35moe-2g)" "$work/q35moe-2g-packed"
    streamed "$work/q35moe-2g-packed" 1024M 64 "$(twin qwen35moe q4_k 8 128)"
    ;;
  stream8g) streamed "$(synth q35moe-8g)" 2048M 48 "$(twin qwen35moe q4_k 16 256)" ;;
  prompts) long_prompt 1024M 512 && long_prompt 1024M 2048 ;;
  *) printf 'rounds.sh: no step %s\n' "$1" >&2; return 2 ;;
  esac
}

for step in "${steps[@]}"; do
  printf '\n# %s, after %s s\n' "$step" "$SECONDS"
  run "$step" 2>&1 | tee "$out/$step.txt" || printf '%s failed\n' "$step"
done
