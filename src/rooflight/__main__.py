"""`python -m rooflight` is the command."""

from rooflight.commands.main import main

if __name__ == "__main__":
    main()
