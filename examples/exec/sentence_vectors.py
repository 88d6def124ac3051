"""Print the first numbers of a text's vector, by a Hugging Face model: python sentence_vectors.py MODEL TEXT."""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

folder, text = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
with torch.inference_mode():
    states = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state
print([round(number, 4) for number in states.mean(1)[0, :4].tolist()])
