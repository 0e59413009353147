"""The doctor: plays scripted conversations through any tokenizer, template, format and context rule, and says
what would be trained: exactly what was sampled, and what storing messages or one token string would have
changed."""
