"""Opening models in an asyncio program: python asyncio_program.py model.safetensors.

A warm open takes a tenth of a millisecond, but a cold one waits for a load. So an asyncio program opens in a thread:
sessions are made for several threads, and the loop goes on meanwhile.
"""

import asyncio
import sys

import trims


async def main(path: str) -> None:
    """Open one model ten times at once, while the loop goes on."""
    async with trims.aadmin() as daemon:
        print((await daemon.status()).health.status)
    with trims.connect() as session:
        opens = [asyncio.to_thread(session.open_file, path, deadline_s=60.0) for _ in range(10)]
        opened = await asyncio.gather(*opens)
        print(f"{len({weights.nbytes for weights in opened})} size of {len(opened)} opens")
        for weights in opened:
            await asyncio.to_thread(weights.close)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
