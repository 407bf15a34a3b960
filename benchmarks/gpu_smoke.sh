#!/usr/bin/env bash
# The loop on one GPU in under four minutes: answer, capture, train, evaluate, decode. DEVICE=cpu tries the script itself.
#
#   TARGET   a folder or hub id (default: SmolLM2 if it can be pulled, else a tiny trained Llama); TAPS fits it
#   STEPS    training steps (default 300); OUT the folder for everything (default: a temporary one, removed at the end)
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-cuda}
dtype=${DTYPE:-bf16}
steps=${STEPS:-300}
limit_seconds=240
if [ -n "${OUT:-}" ]; then
    out=$OUT
    mkdir -p "$out"
else
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

eyas() { "${PYTHON:-.venv/bin/python}" -m eyas.cli.main "$@"; }

# Says what a step took, on stderr.
timed() {
    local name=$1 start=$SECONDS
    shift
    "$@"
    echo "[$((SECONDS - start)) s] $name" >&2
}

target=${TARGET:-}
taps=${TAPS:-embed,layer:2,layer:14}
if [ -z "$target" ]; then
    target=$out/target
    if ! eyas model pull smollm2-135m --out "$target"; then
        echo "SmolLM2 cannot be had here; a tiny Llama takes its place" >&2
        eyas model make tiny-llama --trained --out "$target"
        taps=embed,layer:0,layer:2
    fi
fi

answer() {
    eyas data regenerate --target "$target" --chats "$out/prompts/train.jsonl" --out "$out/answered.jsonl" --max-new-tokens 128 \
        --device "$device" --dtype "$dtype"
    eyas data prepare --target "$target" --chats "$out/answered.jsonl" --out "$out/prepared"
}

capture() {
    eyas capture --target "$target" --data "$out/prepared" --taps "$taps" --out "$out/dump" --device "$device" --dtype "$dtype"
}

train() {
    eyas train --target "$target" --dump "$out/dump" --out "$out/draft" --steps "$steps" --device "$device" --dtype "$dtype"
}

evaluate() {
    eyas evaluate --target "$target" --draft "$out/draft" --chats "$out/prompts/heldout.jsonl" --max-chats 20 --device "$device" --dtype "$dtype" --json
}

decode() {
    eyas generate --target "$target" --draft "$out/draft" --prompt "Name three birds of prey." --device "$device" --dtype "$dtype"
}

eyas data prompts --out "$out/prompts"

timed "answers" answer
timed "capture" capture
timed "training, $steps steps" train
timed "evaluation" evaluate
timed "decoding" decode

echo "smoke test passed on $device in $SECONDS s (limit $limit_seconds s)" >&2
[ "$device" = cpu ] || [ "$SECONDS" -lt "$limit_seconds" ]
