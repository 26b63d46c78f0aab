from couce.cli import main

main()
