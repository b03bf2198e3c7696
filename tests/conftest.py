"""Settings for every test: eight CPU devices, a persistent compilation cache, strict ranks."""

import os
import pathlib

# Tests spend their time in the compiler: its cheapest machine code is half of that. The
# programs are the same. Set before JAX reads it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax  # noqa: E402

# Set before anything touches a device: the count is fixed once the backend is up.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = pathlib.Path(__file__).parents[1] / ".cache" / "jax"
jax.config.update(
    "jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
