"""What Telegram posts, parsed at the door, and what it means to us.

People are known by their number, which never changes. In a group a message is for us when it names us, answers us, or
is a command for us or for nobody in particular. Places in a text are counted in UTF-16 units.
"""

from typing import Any

from msgspec import Struct, field

from legato.domain.channels import Sender
from legato.domain.handles import Address

KIND = "telegram"


class User(Struct):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip() or self.username


class Chat(Struct):
    id: int
    type: str


class Entity(Struct):
    type: str
    offset: int
    length: int
    user: User | None = None


class Stored(Struct):
    """A file that Telegram keeps."""

    file_id: str
    file_size: int = 0
    file_name: str | None = None
    mime_type: str | None = None


class Posted(Struct):
    """A message."""

    message_id: int
    chat: Chat
    from_user: User | None = field(default=None, name="from")
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: "Posted | None" = None
    forum_topic_created: dict[str, Any] | None = None
    migrate_from_chat_id: int | None = None
    text: str = ""
    entities: list[Entity] = []
    caption: str = ""
    caption_entities: list[Entity] = []
    photo: list[Stored] = []
    document: Stored | None = None
    voice: Stored | None = None
    audio: Stored | None = None
    sticker: dict[str, Any] | None = None
    location: dict[str, Any] | None = None
    venue: dict[str, Any] | None = None
    contact: dict[str, Any] | None = None
    poll: dict[str, Any] | None = None
    dice: dict[str, Any] | None = None
    video: dict[str, Any] | None = None
    video_note: dict[str, Any] | None = None
    story: dict[str, Any] | None = None


class Update(Struct):
    update_id: int
    message: Posted | None = None


class Wanted(Struct, frozen=True):
    """A file to fetch."""

    file_id: str
    size: int
    what: str
    media_type: str
    name: str | None = None


class Heard(Struct, frozen=True):
    """A message for somebody here, its files not yet fetched."""

    address: Address
    sender: Sender
    message: str
    text: str
    files: tuple[Wanted, ...]
    group: bool
    for_us: bool


def heard(posted: Posted, me: User, account: str, max_attachment: int) -> Heard | None:
    """What a message means; None when it is nothing that a person says."""
    by = posted.from_user
    if by is None or by.is_bot or posted.chat.type not in ("private", "group", "supergroup"):
        return None
    text, named = _without_our_name(posted.text or posted.caption, posted.entities or posted.caption_entities, me)
    files = _files(posted, max_attachment)
    said = "\n".join(part for part in (text, _described(posted)) if part)
    if not said and not files and not named:
        return None
    group = posted.chat.type != "private"
    thread = str(posted.message_thread_id) if posted.is_topic_message and posted.message_thread_id else ""
    return Heard(
        address=Address(KIND, account, str(posted.chat.id), thread),
        sender=Sender(KIND, account, str(by.id), by.name),
        message=str(posted.message_id),
        text=said,
        files=files,
        group=group,
        for_us=not group or named or _answers(posted.reply_to_message, me),
    )


def _answers(answered: Posted | None, me: User) -> bool:
    """Whether a message of ours is answered; the first message of a topic is answered by all others in it."""
    if answered is None or answered.from_user is None or answered.forum_topic_created is not None:
        return False
    return answered.from_user.id == me.id


def _without_our_name(text: str, entities: list[Entity], me: User) -> tuple[str, bool]:
    """The text without the mention of us, and whether it is for us by what it says."""
    units = text.encode("utf-16-le")
    ours, named = f"@{me.username}".lower(), False
    for entity in sorted(entities, key=lambda entity: -entity.offset):
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        marked = units[start:end].decode("utf-16-le", "replace")
        match entity.type:
            case "mention" if marked.lower() == ours:
                units, named = units[:start].removesuffix(b" \0") + units[end:], True
            case "text_mention" if entity.user is not None and entity.user.id == me.id:
                units, named = units[:start].removesuffix(b" \0") + units[end:], True
            case "bot_command" if entity.offset == 0:
                command, _, bot = marked.partition("@")
                if not bot or f"@{bot}".lower() == ours:
                    command = "/help" if command == "/start" else command
                    units, named = command.encode("utf-16-le") + units[end:], True
    return units.decode("utf-16-le", "replace").strip(), named


def _files(posted: Posted, max_attachment: int) -> tuple[Wanted, ...]:
    found = []
    if posted.photo:
        sizes = sorted(posted.photo, key=lambda photo: photo.file_size)
        photo = next((photo for photo in reversed(sizes) if photo.file_size <= max_attachment), sizes[0])
        found.append(Wanted(photo.file_id, photo.file_size, "photo", "image/jpeg"))
    for what, stored, usual in (
        ("file", posted.document, "application/octet-stream"),
        ("voice message", posted.voice, "audio/ogg"),
        ("audio", posted.audio, "audio/mpeg"),
    ):
        if stored is not None:
            media_type = stored.mime_type or usual
            found.append(Wanted(stored.file_id, stored.file_size, what, media_type, stored.file_name))
    return tuple(found)


def _described(posted: Posted) -> str:
    """What is neither text nor a file, in words."""
    if posted.venue is not None:
        return f"[place: {posted.venue.get('title', '')}, {posted.venue.get('address', '')}]"
    if posted.location is not None:
        return f"[location: {posted.location.get('latitude')}, {posted.location.get('longitude')}]"
    if posted.contact is not None:
        name = f"{posted.contact.get('first_name', '')} {posted.contact.get('last_name', '')}".strip()
        return f"[contact: {name}, {posted.contact.get('phone_number', '')}]"
    if posted.sticker is not None:
        return f"[sticker {posted.sticker.get('emoji', '')}]".replace(" ]", "]")
    if posted.poll is not None:
        return f"[poll: {posted.poll.get('question', '')}]"
    if posted.dice is not None:
        return f"[{posted.dice.get('emoji', 'dice')} {posted.dice.get('value', '')}]"
    if posted.video is not None or posted.video_note is not None:
        return "[video]"
    return "[story]" if posted.story is not None else ""
