"""Look into programs that have no `log` calls: `watch`, the NaN alarm, progress bars."""
