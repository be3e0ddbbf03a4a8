#!/bin/bash
# run.sh DATA [MINUTES]            train here, in the foreground; results in ./demo-out
# run.sh start DATA [MINUTES] [SECONDS] [train.py's arguments]   start in the background in /tmp/demo-run, show its log for SECONDS (default 560)
# run.sh wait [SECONDS]            show the log until it has ended (at most SECONDS, default 560), copy the results to $OUT
# The device machine ends a command after ten minutes and keeps what was started with setsid: hence two calls.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=/tmp/demo-run
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

ended() { [ -e $work/out/DONE ] || [ -e $work/out/FAILED ] || ! kill -0 "$(cat $work/pid)" 2>/dev/null; }

follow() {
    local until=$((SECONDS + $1)) shown=0 lines
    while :; do
        lines=$(wc -l < $work/log)
        [ "$lines" -gt "$shown" ] && sed -n "$((shown + 1)),${lines}p" $work/log | cut -c1-700
        shown=$lines
        ended && return 0
        [ $SECONDS -ge $until ] && return 0
        sleep 2
    done
}

case ${1:-} in
start)
    data=$2 minutes=${3:-13} seconds=${4:-560}
    shift $(($# < 4 ? $# : 4))
    rm -rf $work && mkdir -p $work/out $work/code && cp "$here"/*.py $work/code/ && cp -r "$data" $work/data || exit 1
    nvidia-smi --query-gpu=name,memory.total --format=csv,noheader || true
    python3 -c 'import sys, torch, tokenizers, jinja2; print(sys.version.split()[0], torch.__version__, tokenizers.__version__)' || exit 1
    python3 $work/code/toolgen.py $work/data || echo "no tool dialogues"
    setsid nohup python3 $work/code/train.py $work/data $work/out --minutes "$minutes" "$@" > $work/log 2>&1 < /dev/null &
    echo $! > $work/pid
    sleep 2
    follow "$seconds"
    ended && exec "$0" wait 5
    exit 0 ;;
wait)
    follow "${2:-560}"
    : "${OUT:=./demo-out}"
    mkdir -p "$OUT"
    [ -e $work/out/extras ] && { cp $work/log $work/out/extras/train.log; cp $work/out/config.json $work/out/extras/; tar -C $work/out/extras -cf $work/out/extras.tar .; }
    cp $work/out/*.safetensors $work/out/*.json $work/out/extras.tar $work/out/FAILED "$OUT"/ 2>/dev/null
    [ -e $work/out/extras.tar ] || cp $work/log "$OUT"/train.log
    ls -l "$OUT"
    [ -e $work/out/DONE ] ;;
"")
    sed -n 2,5p "$0"; exit 2 ;;
*)
    exec python3 "$here"/train.py "$1" demo-out --minutes "${2:-13}" ;;
esac
