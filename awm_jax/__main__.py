"""`python -m awm_jax`: see `awm_jax.cli`."""

from awm_jax import cli

if __name__ == "__main__":
    cli.main()
