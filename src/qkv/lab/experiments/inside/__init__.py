"""What happens inside trained models: heads, meanings, examples in the prompt, positions."""
