"""The demo: a real ALBERT becomes an MPOBERT, is deepened, trained, saved and reloaded."""
