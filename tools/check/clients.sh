#!/usr/bin/env bash
# Drives `moeflux serve` with clients of others: the openai and anthropic packages for Python, openai
# for Node, `llm`, and Codex. Fetches them by name.
#
#     tools/check/clients.sh           every dialect and loops of tools, about six minutes
#     tools/check/clients.sh long      a prompt that takes six minutes, through each client
#
# Needs python3, node and npm.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
servers=()
end() {
    kill "${servers[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

cargo build --release --quiet --locked
moeflux=$(realpath "${CARGO_TARGET_DIR:-target}/release/moeflux")
tools=${MOEFLUX_CLIENTS:-$PWD/target/clients}
here=$PWD/tools/check/clients
mkdir -p "$tools"
[ -x "$tools/ve/bin/python" ] || python3 -m venv "$tools/ve"
"$tools/ve/bin/pip" install -q openai anthropic llm numpy
npm install --silent --no-audit --no-fund --prefix "$tools" openai @openai/codex

# serve NAME ARGUMENT...: starts a server on a free port; its address is then in $url.
serve() {
    local name=$1
    shift
    : > "$work/$name.log"
    "$moeflux" serve --port 0 --cache-dir none "$@" 2>> "$work/$name.log" &
    servers+=($!)
    for _ in $(seq 600); do
        url=$(sed -n 's/^serving .* at \(http:[^ ]*\).*/\1/p' "$work/$name.log")
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    cat "$work/$name.log"
    return 1
}

# script LAYERS: a model whose answer is known; its tokens are bytes.
script() {
    cat > "$work/script.json" <<JSON
{"plain": "Hello! This is scripted: 1 < 2 && \\"quotes\\", tabs\\tand \\u00e9\\u8a9e\\ud83d\\ude00.",
 "turns": ["No tools."], "context": 65536, "layers": $1}
JSON
    "$tools/ve/bin/python" "$here/script_model.py" "$work/script.json" "$work/scripted"
}
cp "$here/check.mjs" "$tools/check.mjs"

if [ "${1:-}" = long ]; then
    # All at once, so that each waits for the others too: beyond any client's patience.
    script "${LAYERS:-4}"
    serve long --model "$work/scripted" --threads 1 --sessions 5
    node "$tools/check.mjs" "$url" long &
    node=$!
    "$tools/ve/bin/python" "$here/check.py" --long "$url"
    wait "$node"
    exit
fi

script 1
serve scripted --model "$work/scripted"
scripted=$url
serve demo --context 4096
demo=$url
"$tools/ve/bin/python" "$here/check.py" "$demo" "$scripted"
node "$tools/check.mjs" "$demo"

export LLM_USER_PATH=$work/llm
mkdir -p "$LLM_USER_PATH"
printf -- '- model_id: here\n  model_name: here\n  api_base: "%s/v1"\n' "$demo" \
    > "$LLM_USER_PATH/extra-openai-models.yaml"
said=$("$tools/ve/bin/llm" --key none -m here -o temperature 0 'What does Vec::push do?')
[ "$said" = 'Appends an element to the back of a collection.' ] || { echo "llm: $said"; exit 1; }
echo "ok      llm"

# Codex offers tools, for which the scripted model has another answer.
export CODEX_HOME=$work/codex
mkdir -p "$CODEX_HOME"
cat > "$CODEX_HOME/config.toml" <<TOML
model = "scripted"
model_provider = "moeflux"
[model_providers.moeflux]
name = "moeflux"
base_url = "$scripted/v1"
wire_api = "responses"
TOML
said=$(cd "$work" && "$tools/node_modules/.bin/codex" exec --skip-git-repo-check 'Say hello.' 2>"$work/codex.log") \
    || { cat "$work/codex.log"; exit 1; }
case $said in
    *'No tools.'*) echo "ok      codex exec" ;;
    *) echo "codex: $said"; cat "$work/codex.log"; exit 1 ;;
esac

# Calls with their results and the answers to these. All formats run, whatever one does.
cp "$here/loops.mjs" "$tools/loops.mjs"
status=0
for format in hermes qwen_xml glm_4_5 deepseek_v3_1 kimi_k2; do
    "$tools/ve/bin/python" "$here/scenes.py" "$format" "$work/$format.json"
    "$tools/ve/bin/python" "$here/script_model.py" "$work/$format.json" "$work/$format"
    serve "$format" --model "$work/$format"
    "$tools/ve/bin/python" "$here/loops.py" "$url" "$format" "$tools" || status=1
    # The same with a restart before every request.
    "$tools/ve/bin/python" "$here/restarts.py" "$moeflux" "$work/$format" "$format" "$tools" || status=1
done
exit "$status"
