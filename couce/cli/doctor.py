import typer


def doctor() -> None:
    """Show what is installed, which devices work, and what to install."""
    from couce.doctor import examine

    diagnosis = examine()
    width = max(len(name) for name, _ in diagnosis.facts)
    for name, fact in diagnosis.facts:
        typer.echo(typer.style(f"{name:<{width}}", bold=True) + f"  {fact}")
    for advice in diagnosis.advice:
        typer.echo(f"- {advice}")
    for problem in diagnosis.problems:
        typer.echo(typer.style("problem: ", fg="red") + problem)
    if diagnosis.problems:
        raise typer.Exit(1)
    typer.echo("No problems found. Next: couce demo")
