"""Environment variables of child processes, by lists of what each kind needs: what no list names stays with the parent.

A child may run code of a model or of a tenant, and other processes of its user read what it was started with
(`/proc/PID/environ`). So keys of clouds, tokens, passwords and whatever else an operator has in the environment of a
daemon or an endpoint reach the one kind of child that uses them.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trims.process.python import variables_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Variables of any program, of Python, and of trims: where things lie, the language, the loader, the C library.
SYSTEM = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "TERM", "TZ", "TZDIR", "LANG", "LANGUAGE", "LC_*",
    "TMPDIR", "TMP", "TEMP", "XDG_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "GLIBC_TUNABLES",
    "MALLOC_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "__PYVENV_LAUNCHER__", "COV_CORE_*",
    "COVERAGE_*", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "NO_COLOR", "FORCE_COLOR", "COLUMNS",
    "SOURCE_DATE_EPOCH", "TRIMS_RUNTIME_DIR", "TRIMS_STATE_DIR", "TRIMS_ENVIRONMENTS_DIR", "TRIMS_VERIFY",
    "TRIMS_IMAGE", "TRIMS_LOG_LEVEL", "TRIMS_LOG_FORMAT", "TRIMS_TRACE", "TRIMS_TRACE_DIR", "TRIMS_TRACE_LEVEL",
    "TRACEPARENT", "TRACESTATE", "OTEL_*",
)  # fmt: skip
#: Variables that frameworks and their libraries read: threads, devices, caches, compilers.
FRAMEWORKS = (
    "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_*", "NUMBA_*", "NPY_*", "DNNL_*", "ONEDNN_*", "SYCL_*", "ZE_*", "TBB_*", "ATEN_*", "CUDA_*", "CUDNN_*",
    "CUBLAS_*", "CUBLASLT_*", "NVIDIA_*", "NCCL_*", "HIP_*", "ROCR_*", "HSA_*", "TORCH_*", "PYTORCH_*", "C10_*",
    "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "TRITON_*", "LIBRARY_PATH", "CPATH", "CC", "CXX", "ORT_*", "MXNET_*",
    "DMLC_*", "TOKENIZERS_*", "TRANSFORMERS_*", "SENTENCE_TRANSFORMERS_HOME", "SAFETENSORS_*", "TIKTOKEN_CACHE_DIR",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_MODULES_CACHE", "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_*", "NLTK_DATA", "MPLCONFIGDIR",
)  # fmt: skip
#: Variables of what fetches from clouds and servers: credentials, addresses, proxies, certificates.
FETCHING = (
    "AWS_*", "AZURE_*", "GOOGLE_*", "GCE_*", "CLOUDSDK_*", "HF_*", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_CACHE",
    "NETRC", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "IDENTITY_*", "MSI_*", "IMDS_*",
    "KUBERNETES_*",
)  # fmt: skip
#: Names with one of these words are of secrets: no pattern stands for them where code of models may run.
_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|SECRETS|PASS|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIAL|CREDENTIALS|AUTH|HEADERS)(?:_|$)"
)


def child_environment(
    *lists: Collection[str],
    python: str | os.PathLike[str] = "",
    given: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    secrets: bool = False,
) -> dict[str, str]:
    """Return the environment variables of a child: those of `SYSTEM`, of further lists, and some of its own.

    Args:
        lists: Names, or beginnings of names with `*` behind them.
        python: Interpreter of the child; empty for this one (see `variables_for`).
        given: Variables of the parent; None for this process's.
        more: Variables that the child gets whatever the parent has.
        secrets: Whether patterns stand for names of secrets, too: for children that run no code of models.
    """
    found = os.environ if given is None else given
    patterns = [each for names in (SYSTEM, *lists) for each in names]
    exact = {each for each in patterns if not each.endswith("*")}
    starts = tuple(each[:-1] for each in patterns if each.endswith("*"))
    kept = {name: found[name] for name in found if name in exact or _matches(name, starts, secrets=secrets)}
    return {**variables_for(python, kept), **(more or {})}


def _matches(name: str, starts: tuple[str, ...], *, secrets: bool) -> bool:
    return name.startswith(starts) and (secrets or not _SECRET.search(name.upper()))


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas. Raises ValueError for what is no name of a variable."""
    names = tuple(each.strip() for each in text.split(",") if each.strip())
    for name in names:
        if not is_name(name):
            raise ValueError(f"{name!r:.80} is no name of an environment variable; write NAME,NAME")
    return names


def is_name(name: str) -> bool:
    """Return whether a text can be the name of an environment variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,255}", name) is not None


def pick(names: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of these names that are set.

    Args:
        given: Where; None for this process's environment.
    """
    found = os.environ if given is None else given
    return {name: found[name] for name in names if name in found}
