"""Adapters such as LoRA's, which are changes of another model's tensors and no model themselves."""

from __future__ import annotations

#: File that says what an adapter is.
ADAPTER = "adapter_config.json"


def adapter_words(where: str, base: str = "") -> str:
    """Return why an adapter is not served, and what to do; `base` is the model that it belongs to, if that is known."""
    return (
        f"{where} holds an adapter of {base or 'another model'} ({ADAPTER}), which is no model: merge it into that "
        "(peft: PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(other_folder)) and add the "
        "other folder with the tokenizer; or name the file of tensors itself to have them as they are"
    )
