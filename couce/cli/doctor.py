import typer


def doctor() -> None:
    """Say what is installed, which devices really work, and what to install otherwise."""
    from couce.doctor import examine

    report = examine()
    width = max(len(name) for name, _ in report.facts)
    for name, fact in report.facts:
        typer.echo(typer.style(f"{name:<{width}}", bold=True) + f"  {fact}")
    for advice in report.advice:
        typer.echo(f"- {advice}")
    for problem in report.problems:
        typer.echo(typer.style("problem: ", fg="red") + problem)
    if report.problems:
        raise typer.Exit(1)
    typer.echo("No problems found. Next: couce demo")
