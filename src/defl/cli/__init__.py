"""The defl command: arguments in, printed results and exit codes out."""
