"""The subcommands of ``simcore``, one module each: ``main(arguments, prog) -> exit code``."""
