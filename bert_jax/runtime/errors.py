"""The exceptions that a user is meant to read."""


class InputError(ValueError):
    """Bad input or configuration: one line that names the place, the value and the remedy.

    The doors (`main`, `tools`) print it on standard error without a traceback and exit with
    status 2. Anything else that escapes is a defect of this program and keeps its traceback.
    """


class Diverged(RuntimeError):
    """A loss, a parameter or a metric is not finite any more.

    Attributes:
      step: whose parameters are no good.
    """

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class Stopped(BaseException):
    """The run was asked to stop (SIGTERM, Ctrl-C); what there was to save is saved.

    Like KeyboardInterrupt no Exception, so that nothing on its way takes it for a fault.
    """
