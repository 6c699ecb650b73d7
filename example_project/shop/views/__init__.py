"""Pages. None asks who looks: this shop is for one machine."""
