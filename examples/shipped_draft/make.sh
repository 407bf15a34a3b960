#!/usr/bin/env bash
# Makes the draft that comes with Eyas (eyas model pull smollm2-135m-draft) again, from nothing but the target.
#
#   examples/shipped_draft/make.sh [FOLDER]     FOLDER keeps everything (default: shipped); what is there is used again
#
#   PROMPTS  prompts that the target writes in each of two processes (default 4400)
#   MINUTES  of training (default 45)
#
# Two processes of one thread each write text faster than one of two threads: the target is small.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-shipped}
prompts=${PROMPTS:-4400}
minutes=${MINUTES:-45}
mkdir -p "$out"

eyas() { .venv/bin/eyas "$@"; }

both() { # run a command for part 1/2 and 2/2 side by side; @ stands for the part's number
    local pids=() part
    for part in 1 2; do
        OMP_NUM_THREADS=1 eyas "${@//@/$part}" --part "$part/2" & pids+=($!)
    done
    wait "${pids[0]}"
    wait "${pids[1]}"
}

[ -e "$out/prompts" ] || eyas data prompts --out "$out/prompts"
[ -e "$out/target" ] || eyas model pull smollm2-135m --out "$out/target"
[ -e "$out/written-2.jsonl" ] || both data sample --target "$out/target" --count "$prompts" --out "$out/written-@.jsonl" \
    --heldout "$out/prompts/heldout.jsonl" --max-new-tokens 128 --temperature 0.9 --top-p 0.95 --seed 1
[ -e "$out/answered-2.jsonl" ] || both data regenerate --target "$out/target" --out "$out/answered-@.jsonl" --stop-at-loop \
    --chats "$out/prompts/train.jsonl" --chats "$out/written-1.jsonl" --chats "$out/written-2.jsonl" \
    --max-new-tokens 224 --max-prompt-tokens 512 --heldout "$out/prompts/heldout.jsonl"
[ -e "$out/answered.jsonl" ] || .venv/bin/python examples/shipped_draft/pick.py 1200 "$out"/answered-[12].jsonl >"$out/answered.jsonl"
[ -e "$out/prepared" ] || eyas data prepare --target "$out/target" --out "$out/prepared" --validation 0.02 \
    --chats "$out/answered-1.jsonl" --chats "$out/answered-2.jsonl"
[ -e "$out/dump" ] || eyas capture --target "$out/target" --data "$out/prepared" --taps layer:1,layer:14,layer:26 --out "$out/dump"
[ -e "$out/draft" ] || eyas train --target "$out/target" --dump "$out/dump" --out "$out/draft" --minutes "$minutes"
eyas evaluate --target "$out/target" --draft "$out/draft" --chats "$out/prompts/heldout.jsonl" --out "$out/report"
