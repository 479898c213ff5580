"""A caller to be killed: calls HOST PORT, says "speaking" on standard output, and speaks until then.

Standard library only, so that it starts in no time.
"""

import base64
import itertools
import json
import socket
import sys
import time

host, port = sys.argv[1], int(sys.argv[2])
line = socket.create_connection((host, port))
line.sendall(
    f"GET /v1/realtime HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
)
line.recv(4096)
audio = base64.b64encode(bytes(1920)).decode()
event = json.dumps({"type": "input_audio_buffer.append", "audio": audio}).encode()
# A masked text frame of 126 bytes or more; a mask of zeros leaves its contents as they are.
frame = b"\x81\xfe" + len(event).to_bytes(2, "big") + bytes(4) + event
for number in itertools.count():
    line.sendall(frame)
    if number == 0:
        print("speaking", flush=True)
    time.sleep(0.04)
