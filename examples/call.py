"""Hold one spoken call with nothing but `websockets`: speak a recording, print the answer as it comes.

    metronome serve &
    python examples/call.py question.wav

The recording is 16-bit mono WAV at 24, 16 or 8 kHz.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import wave

from websockets.asyncio.client import ClientConnection, connect

URL = "ws://127.0.0.1:8765/v1/realtime"
PACKET_S = 0.02
LISTEN_S = 10.0  # after the last word of the recording


async def speak(line: ClientConnection, path: str) -> None:
    """Send the recording in packets of 20 ms, each when a microphone would have it."""
    with wave.open(path) as recording:
        rate = recording.getframerate()
        audio = {"input": {"format": {"type": "audio/pcm", "rate": rate}}}
        settings = {"type": "realtime", "audio": audio}
        await line.send(json.dumps({"type": "session.update", "session": settings}))
        start, packet = asyncio.get_running_loop().time(), 0
        while sound := recording.readframes(int(rate * PACKET_S)):
            packet += 1
            await asyncio.sleep(start + packet * PACKET_S - asyncio.get_running_loop().time())
            encoded = base64.b64encode(sound).decode()
            await line.send(json.dumps({"type": "input_audio_buffer.append", "audio": encoded}))
    await line.send(json.dumps({"type": "input_audio_buffer.commit"}))


async def listen(line: ClientConnection) -> None:
    """Print the reply as it comes, until it is complete."""
    async for message in line:
        event = json.loads(message)
        if event["type"] == "response.output_text.delta":
            print(event["delta"], end="", flush=True)
        elif event["type"] == "response.output_text.done":
            print()
            return
        elif event["type"] == "error":
            raise SystemExit(event["error"]["message"])


async def main(path: str, url: str = URL) -> None:
    async with connect(url) as line:
        listening = asyncio.create_task(listen(line))
        await speak(line, path)
        await asyncio.wait_for(listening, LISTEN_S)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
