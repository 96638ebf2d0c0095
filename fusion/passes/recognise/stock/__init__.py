"""The stages of lookups that are made of stock ops."""
