"""What each page shows. Pure: the state of the caches in, typed values out, which templates only write down."""
