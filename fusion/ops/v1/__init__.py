"""The v1 family: one op before the gathers and one behind them."""
