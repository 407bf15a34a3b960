"""Picks the answered chats that come with Eyas: all of the project's own prompts, and some that the target wrote itself.

python pick.py COUNT ANSWERED.jsonl... > answered.jsonl
"""

import hashlib
import json
import sys
from pathlib import Path

from eyas.data.chats import Chat, read_chats


def main(count: int, files: list[str]) -> None:
    chats = [chat for file in files for chat in read_chats(Path(file))]
    sampled = [chat for chat in chats if chat.id.startswith("sampled-")]
    own = [chat for chat in chats if not chat.id.startswith("sampled-")]
    picked = own + sorted(sampled, key=_shuffled)[: count - len(own)]
    for chat in sorted(picked, key=_shuffled):  # any beginning or even spread of the file holds both kinds and all domains
        print(json.dumps(chat.to_json(), ensure_ascii=False))


def _shuffled(chat: Chat) -> str:
    return hashlib.sha256(chat.id.encode()).hexdigest()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
