"""Who holds which samples: rules, split files, splits of other simulators, samples held out."""
