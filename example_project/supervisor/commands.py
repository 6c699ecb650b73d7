"""What can be typed while it runs, as in ``supervisorctl``."""

from collections.abc import Callable

from supervisor.process import Process

HELP = "status | stop NAME... | start NAME... | kill NAME... (as kill -9) | Ctrl-C ends all"


def obey(line: str, processes: dict[str, Process], say: Callable[[str], None]) -> None:
    """Do what one line says, and tell what came of it."""
    command, *names = line.split() or [""]
    unknown = [name for name in names if name not in processes]
    if unknown:
        say(f"there is no {unknown[0]}; there are {', '.join(processes)}")
        return
    chosen = [processes[name] for name in names]
    if command == "status":
        tell(chosen or list(processes.values()), say)
    elif command == "stop" and chosen:
        for process in chosen:
            process.ask_to_end()
            say(f"{process.name} is asked to stop, and stays so until: start {process.name}")
    elif command == "start" and chosen:
        for process in chosen:
            if process.pid is None:
                process.bury()
                process.start()
            say(f"{process.name} runs, pid {process.pid}")
    elif command == "kill" and chosen:
        for process in chosen:
            process.kill()
    elif command:
        say(HELP)


def tell(processes: list[Process], say: Callable[[str], None]) -> None:
    """One line each."""
    for process in processes:
        standing = f"pid {process.pid}" if process.pid else "is killed, starts soon" if process.wanted else "is stopped"
        say(f"{process.name:<10} {standing}")
