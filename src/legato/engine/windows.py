"""How many tokens known models take, by the beginning of their names. Configuration wins, then what a server tells."""

DEFAULT = 32_000  # safe for nearly everything that is served today

_KNOWN = {
    "gpt-3.5": 16_385,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4": 8_192,
    "gpt-5": 400_000,
    "gpt-6": 400_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude": 200_000,
    "gemini": 1_048_576,
    "deepseek": 128_000,
    "mistral": 32_000,
    "qwen3": 32_768,
    "llama3.": 128_000,
    "llama3": 8_192,
}


def known(name: str) -> int | None:
    """The window of a model that is known by its name, which may carry its vendor's."""
    bare = name.rsplit("/", 1)[-1].lower()
    found = [prefix for prefix in _KNOWN if bare.startswith(prefix)]
    return _KNOWN[max(found, key=len)] if found else None
