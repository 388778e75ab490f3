"""Exit statuses of stages and commands; docs/programs.md has them in a table."""

EXIT_NO = 1  # the command has worked and its answer is no: it does not fit, differs, is red, is refused
EXIT_USER_ERROR = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped after a checkpoint; started again, the stage resumes
EXIT_INTERRUPTED = 130  # Ctrl-C
EXIT_KILLED, EXIT_TERMINATED = 137, 143  # 128 + SIGKILL, 128 + SIGTERM, as shells and guards report them
RESUMABLE = (EXIT_STOPPED, EXIT_INTERRUPTED, EXIT_KILLED, EXIT_TERMINATED)
