"""The console script. `quarterdeck mcp` branches off before anything heavy is imported."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["mcp"]:
        from quarterdeck import bridge

        bridge.main(sys.argv[2:])
        return
    from quarterdeck.cli.main import run

    run()


if __name__ == "__main__":
    main()
