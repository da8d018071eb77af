"""What an experiment is, how it is run, where its results are kept, and the page that is made from them."""
