#!/usr/bin/env bash
# Makes the table of docs/story.md again: a draft trained on [embed, layer:2, layer:14], fed those states and then
# [layer:2, layer:14, layer:27].
#
#   examples/story/run.sh [FOLDER]     FOLDER keeps everything (default: story); what is there already is used again
#
#   DRAFT    evaluate this draft instead of training one; it must have been trained on the same states
#   MINUTES  of training (default 5)
#   CHATS    held-out prompts that are evaluated, spread over the domains (default 60)
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-story}
minutes=${MINUTES:-5}
chats=${CHATS:-60}
trained_on=embed,layer:2,layer:14
fed=layer:2,layer:14,layer:27
prompts=$out/prompts
mkdir -p "$out"

eyas() { .venv/bin/eyas "$@"; }

if [ ! -e "$prompts" ]; then
    eyas data prompts --out "$prompts"
fi
if [ ! -e "$out/target" ]; then
    eyas model pull smollm2-135m --out "$out/target"
fi
draft=${DRAFT:-$out/draft}
if [ ! -e "$draft" ]; then
    eyas data prepare --target "$out/target" --chats "$prompts/answered.jsonl" --out "$out/prepared"
    eyas capture --target "$out/target" --data "$out/prepared" --taps "$trained_on" --max-samples 600 --out "$out/dump"
    # Small batches: in a few minutes on two cores the number of steps matters more than their size.
    eyas train --target "$out/target" --dump "$out/dump" --taps "$trained_on" --out "$draft" --minutes "$minutes" \
        --tokens-per-batch 512 --learning-rate 6e-4 --draft-vocab-size 4096
fi
evaluate() { eyas evaluate --target "$out/target" --draft "$draft" --chats "$prompts/heldout.jsonl" --max-chats "$chats" --lossless-prompts 0 --json "$@"; }
evaluate >"$out/right.json"
evaluate --as-if "$fed" >"$out/wrong.json"

.venv/bin/python examples/story/table.py "$out/right.json" "$out/wrong.json" benchmarks/results/story.json docs/story.md
