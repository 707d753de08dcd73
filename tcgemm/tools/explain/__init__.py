"""``tcgemm explain``: what a call would be, before it runs."""
