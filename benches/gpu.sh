#!/usr/bin/env bash
# gpu.sh MOEFLUX WORKDIR OUT [STEP...]: the figures of benches/record/gpu.md, on the first GPU that is no software.
#
# MOEFLUX is the program, WORKDIR has room for random models (20 GB; 51 for all steps), OUT gets a file of JSON per step.
# Steps, all by default: resident, quarter, limited, packed, prompt, geometry.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
moeflux=$(realpath "$1"); mkdir -p "$2" "$3"; work=$(realpath "$2"); out=$(realpath "$3"); shift 3
configs=$(realpath "$(dirname "$0")/../crates/moeflux/tests/data/configs")
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(resident quarter limited packed prompt geometry)

# synth NAME CONFIG: a random model in 4 bits, made once.
synth() {
  [ -f "$work/$1/model.safetensors.index.json" ] || [ -f "$work/$1/model.safetensors" ] ||
    "$moeflux" synth --config "$2" --out "$work/$1" --bits 4 --group 64
}

# bench FILE MODEL ARGUMENT...: appends to OUT/FILE.json.
bench() {
  local file=$out/$1.json model=$work/$2
  shift 2
  printf '== %s %s\n' "$(basename "$model")" "$*"
  "$moeflux" bench --backend gpu --model "$model" --json "$@" | tee -a "$file" |
    grep -oE '"(prefill_tokens_per_s|decode_tokens_per_s|arithmetic|read_gb_per_s|device_gb_per_s)":[^,]*' |
    paste -sd' ' || printf 'FAILED\n'
}

synth q36 "$configs/qwen3.6-35b-a3b.json"
for step in "${steps[@]}"; do
  printf '\n# %s, %s s\n' "$step" "$SECONDS"
  case $step in
  resident) # all experts on the card
    bench resident q36 --gpu-memory 40G --prompt-tokens 2048 --gen-tokens 128 --repeat 3
    bench resident q36 --gpu-memory 40G --prompt-tokens 512 --gen-tokens 128 --repeat 3
    ;;
  quarter) # a quarter of their bytes there, the rest in the host's memory
    bench quarter q36 --gpu-memory 6380781568 --prompt-tokens 512 --gen-tokens 256 --repeat 3
    ;;
  limited) # 10 GiB of memory and 2 GiB of experts on the card, the rest from the drive
    bench limited q36 --memory 10G --gpu-memory 3860000000 --prompt-tokens 0 --gen-tokens 48 --repeat 2
    ;;
  packed)
    "$moeflux" pack "$work/q36" "$work/q36-packed"
    bench packed q36-packed --memory 10G --gpu-memory 3860000000 --prompt-tokens 0 --gen-tokens 48 --repeat 2
    rm -rf "$work/q36-packed" # its room is the next model's
    ;;
  prompt)
    bench prompt q36 --memory 10G --gpu-memory 3860000000 --prompt-tokens 512 --gen-tokens 0 --repeat 1
    ;;
  geometry) # 8 of the 60 layers of Qwen3.5-397B
    python3 - "$configs/qwen3.5-397b-a17b.json" "$work/q397-8.json" 8 <<'PYTHON'
import json, sys
source, target, n_layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = json.load(open(source))
text = config["text_config"]
text["num_hidden_layers"], text["layer_types"] = n_layers, text["layer_types"][:n_layers]
json.dump(config, open(target, "w"))
PYTHON
    synth q397-8 "$work/q397-8.json"
    bench geometry q397-8 --memory 11G --gpu-memory 5G --prompt-tokens 0 --gen-tokens 24 --repeat 2
    ;;
  *)
    printf 'gpu.sh: no step %s\n' "$step" >&2
    exit 2
    ;;
  esac
done
