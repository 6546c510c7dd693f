"""The modelled coder of `docs/format.md`."""


class Model:
    """What one effort, 0 to 2, has learned since the keyframe."""

    def __init__(self, effort):
        self.effort = effort

    def decode(self, stored, klass, columns):
        """The bytes of each column of a modelled part: `columns` has number, form and bytes of each."""
        raise NotImplementedError

    def learn(self, klass, columns, contents, choices):
        """Codes, without writing, what was decoded otherwise: `columns` has number and form of each."""
        raise NotImplementedError
