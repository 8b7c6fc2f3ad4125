"""Runs openai-python against a server: plain, streaming and concurrent requests, and errors."""

import asyncio
import sys

import openai

URL = sys.argv[1] + "/v1"
MESSAGES = [{"role": "user", "content": "Write a loop."}]
REQUEST = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}


def check(name, found, expected):
    if found != expected:
        sys.exit(f"{name}: {found!r}, expected {expected!r}")
    print(f"{name}: {found!r}")


def of_stream(chunks):
    """Returns the text, the reason of the end and the usage of a stream."""
    text, finish, usage = "", None, None
    for i, chunk in enumerate(chunks):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert (choice.delta.role == "assistant") == (i == 0), chunk
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish, usage


def sync(client, model):
    reply = client.chat.completions.create(model=model, **REQUEST)
    text = reply.choices[0].message.content
    print("chat:", repr(text), reply.usage.completion_tokens, "tokens", reply.model_extra["timings"]["draft_n"], "drafted")
    usage = {"include_usage": True}
    stream = client.chat.completions.create(model=model, stream=True, stream_options=usage, **REQUEST)
    streamed, finish, counts = of_stream(stream)
    check("stream", streamed, text)
    check("finish_reason", finish, reply.choices[0].finish_reason)
    check("usage", counts.completion_tokens, reply.usage.completion_tokens)
    with client.chat.completions.stream(model=model, **REQUEST) as events:
        events.until_done()
        check("stream helper", events.get_final_completion().choices[0].message.content, text)
    scored = client.chat.completions.create(model=model, logprobs=True, top_logprobs=2, **REQUEST)
    content = scored.choices[0].logprobs.content
    check("tokens with logprobs", len(content), reply.usage.completion_tokens)
    assert all(token.logprob < 0 and len(token.top_logprobs) == 2 for token in content), content
    echo = client.completions.create(
        model=model, prompt=[5, 6, 7], max_tokens=2, temperature=0, echo=True, logprobs=1
    )
    logprobs = echo.choices[0].logprobs
    check("echo", (len(logprobs.tokens), logprobs.token_logprobs[0]), (5, None))
    several = client.completions.create(model=model, prompt="def ", max_tokens=8, n=2, seed=1)
    check("choices", [choice.index for choice in several.choices], [0, 1])
    return text


def errors(client, model):
    for name, error, request in [
        ("bad request", openai.BadRequestError, {**REQUEST, "temperature": -1}),
        ("unsupported", openai.BadRequestError, {**REQUEST, "tools": [{"type": "function"}]}),
    ]:
        try:
            client.chat.completions.create(model=model, **request)
        except error as found:
            print(f"{name}: {found.status_code} {found.type}: {found.body['message']}")
        else:
            sys.exit(f"{name}: no error")
    try:
        client.embeddings.create(model=model, input="a")
    except openai.InternalServerError as found:
        check("embeddings", found.status_code, 501)


async def concurrent(model, expected):
    async with openai.AsyncOpenAI(base_url=URL) as client:

        async def plain():
            reply = await client.chat.completions.create(model=model, **REQUEST)
            return reply.choices[0].message.content

        async def stream():
            chunks = await client.chat.completions.create(model=model, stream=True, **REQUEST)
            return of_stream([chunk async for chunk in chunks])[0]

        texts = await asyncio.gather(*(plain() if i % 2 else stream() for i in range(12)))
        check("12 concurrent requests", set(texts), {expected})


def main():
    client = openai.OpenAI(base_url=URL)
    [model] = [model.id for model in client.models.list()]
    text = sync(client, model)
    errors(client, model)
    asyncio.run(concurrent(model, text))


main()
