"""Code that runs in the containers of a cloud job: entry points, settings, and results, as the cloud expects them."""
