"""Program in the environment of other people's clients: the fields that OpenAI documents, as its client has them.

python openai_fields.py: prints JSON: route -> names of fields.
"""

from __future__ import annotations

import json
import sys
import typing

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

PARAMETERS = {
    "embeddings": (embedding_create_params.EmbeddingCreateParams,),
    "completions": typing.get_args(completion_create_params.CompletionCreateParams),
    "chat/completions": typing.get_args(chat_create_params.CompletionCreateParams),
}

if __name__ == "__main__":
    names = {
        route: sorted({name for kind in kinds for name in typing.get_type_hints(kind)})
        for route, kinds in PARAMETERS.items()
    }
    json.dump(names, sys.stdout)
