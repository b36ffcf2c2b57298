"""Why a grant is refused, as a sentence for whoever wrote the pod."""

_SHOWN = 64


class GrantRefused(ValueError):
    """An annotation that cannot be granted. `str()` is the sentence: field, value, bound, what to do."""

    def __init__(self, field: str, value: str, message: str) -> None:
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
        super().__init__(f'{field}: "{shown}" {message}')
        self.field = field
        self.value = value
        self.message = message
