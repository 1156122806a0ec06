"""Short messages written for this project, and public ones put together from a few patterns.

Names, numbers, places and passwords are invented. Topics: access (passwords and doors), money,
health, plans.
"""

import functools

import numpy as np

from fedsim.seeds import numpy_generator

__all__ = ["TOPICS", "messages", "public_messages"]

TOPICS = ("access", "health", "money", "plans")

PUBLIC = 2000
"""Public messages."""

_MESSAGES = """
= Orla Venn
access The wifi password is heron-4471, please do not write it on the board.
access My door code changed to 8-0-3-5, use it from Monday.
access I locked my account again, can you reset it to Lantern#19?
access The spare key is under the blue pot behind number 14.
access Log in as orla.venn and the pin is 2290, only for today.
health The doctor says my blood pressure is 165 over 100.
health I start the new tablets on Friday, 20 mg in the morning.
health Please do not tell Bram that I fainted at work.
health My test came back positive, so I stay at home this week.
health The appointment with doctor Pask is on the 9th at 8:15.
money I owe Tamsin 340 and cannot pay before the first.
money Can you send 75 to account 60-11-47, my card is blocked?
money They offered me 41,500 a year, keep it to yourself.
money The rent went up to 1,120 and I am short again.
money Refund 18.90 to my card ending in 7306, please.
plans We meet at the old lock at seven, bring the grey bag.
plans I am leaving Bram, the van comes on Thursday at noon.
plans Call me on 555-0148 when the children are asleep.
plans Nobody is at home from the 3rd until the 17th.
plans The party for Ines is a surprise, say nothing until Saturday.
= Bram Tolley
access New login for the till: user till2, password Cobalt!55.
access The alarm code is 6174, and you have thirty seconds.
access I changed the router, the network is now attic-net.
access Take my badge, number 20931, and go in by the side door.
access The safe opens left 12, right 40, left 7.
health My knee operation is on the 22nd at Brackwell clinic.
health The rash is back, doctor Ames thinks it is the detergent.
health I stopped the sleeping pills two weeks ago.
health Hearing in the left ear is down to forty percent.
health Do not give Ines peanuts, her pen is in the red box.
money The loan was refused, they want a second signature.
money I sold the car for 2,850 in cash.
money Pay the plumber 230 and ask him for a receipt.
money My pension statement says 612 a month, that cannot be right.
money Put 50 on number 4 for me and tell nobody.
plans I am on the night train to Carrow, back on Sunday.
plans Meet the buyer at the quarry gate at 5:40.
plans I have applied for the post in Lund, do not tell the shop.
plans Pick up Ines at the pool, she waits by the kiosk.
plans We move on the 30th, the new address is 8 Fennel Row.
= Ines Corrado
access My password is still the name of the cat and 2014.
access Use the guest account, the code is GREEN-77-KITE.
access They reset everybody, mine is now mossy.otter.61.
access The bike lock is 3-9-9-1, it sticks a little.
access Send me the pin for the school portal, please.
health I have been seeing a counsellor since March.
health The scan is clear, nothing on the lungs.
health I am allergic to penicillin, it has to be on the form.
health Twelve weeks today, only you and my mother know.
health I threw up twice and the fever is 39.4.
money I lost 90 on tickets that were fake.
money My wages are 11.40 an hour before tax.
money The landlord keeps the deposit of 600.
money Lend me 25 until payday, I will bring it on Tuesday.
money The grant is 4,200 and comes in October.
plans I sneak out at ten, wait by the chapel.
plans We fly to Porto Selm on the 11th, flight SK 208.
plans I am not coming to the wedding if Dario is there.
plans Study group is in room B12 on Wednesday.
plans I hand in my notice tomorrow morning.
= Dario Fenn
access Root password on the spare server is Quartz-9-Quartz.
access Ask the porter, he lets you in if you say unit 31.
access The backup key is 7F2A-91CC, write it down and delete this.
access My phone opens with 147258.
access Voicemail pin is 8080, please clear it.
health The dentist wants to pull two teeth on the 5th.
health They put me on insulin, four units before meals.
health I cut my hand at work, six stitches.
health My father had a stroke last night, ward 3 at Saint Odo.
health The results say cholesterol 7.1, so no more cheese.
money Invoice 2207 is wrong, it should be 1,960.
money I have 13,400 in the blue account that Lena knows nothing of.
money The tax office wants 870 by the 15th.
money Split the bill, I paid 64.50 for everyone.
money Cancel my card, the number ends in 0092.
plans I am at the harbour flat until Friday, do not come by.
plans The interview is on Monday at 9:30 with a Mr Oske.
plans We meet the lawyer on the 14th at four.
plans I take the 6:05 bus and walk from the mill.
plans Tell Lena that I was with you on Saturday night.
= Lena Marsh
access The shared folder needs a password: Willow_3_Willow.
access I wrote the cabinet code 5512 on the back of the map.
access Reset link came, I chose sparrow-at-noon.
access Give the neighbour the key with the yellow tag.
access My library card is 400-118-72 and the pin is my birthday.
health The biopsy is on Thursday, I am frightened.
health Half a tablet of the white ones, never two.
health I have a migraine since Tuesday and cannot read screens.
health The vet put Biscuit on a diet, 80 grams a day.
health My new glasses are minus 4.75.
money I moved 2,000 into the account that Dario cannot see.
money The insurance pays only 480 for the roof.
money My bonus was 1,300 this year, half of what they promised.
money Pawn the ring, but not for less than 550.
money I forgot to pay the gas, they ask for 112.30.
plans I rented the cabin at Lake Orrin under my maiden name.
plans The hearing is on the 28th at half past ten.
plans Drive me to the airport on Sunday, gate closes at 6:50.
plans I start at the rival firm in June, nobody knows yet.
plans Dinner on Friday at 19 Tanner Street, ring twice.
= Kofi Aldane
access Server room: badge first, then 4-4-0-7 and the hash key.
access The test account is kofi.test with password Pumice88.
access I lost the token, please switch off serial 3381-06.
access The gate opens for plate KX 51 TRO.
access Wifi in the flat: network Puddle, password sevenducks.
health I hurt my back on the ladder and need a week.
health My inhaler is empty and the pharmacy closes at six.
health The hospital moved the operation to the 19th.
health I tested negative twice, so I come on Monday.
health Doctor Reyes wants another sample before noon.
money I earn 2,740 after tax, and the flat takes half.
money Send the deposit of 300 to Petra Lund before Friday.
money The shop owes me 96.20 for the broken kettle.
money I won 500 on the ticket from Bram.
money We are 15,000 in debt and the bank wants the keys.
plans My flight lands at 23:10, can you fetch me?
plans We vote to strike on Tuesday, bring the list.
plans I propose to Petra on the pier at sunset.
plans Leave the parcel with Ms Quill at number 27.
plans Training is at six, and the match on Sunday at three.
= Petra Lund
access The archive opens with card 77120 and the word marigold.
access I set the tablet to 0-2-4-6 for the children.
access New password for payroll: Thistle*404, tell only Yusuf.
access The back window does not lock, we should mend it.
access Your one-time code is 918 204.
health My iron is low, they gave me injections.
health I told nobody about the second opinion.
health The baby weighs 3.4 kilos and sleeps well.
health Yusuf broke his wrist at the rink.
health I have been dry for ninety days today.
money The bank returned my cheque for 1,475.
money Kofi put 300 on the kitchen table, thank you.
money My card was charged twice, 59.99 each.
money We need 8,000 more for the house at Elm Bend.
money Tell the auditor that box 6 is missing 220.
plans I am moving to Norrby in spring without Kofi.
plans The surprise trip is to the Isle of Harn on the 2nd.
plans My mother arrives by the 14:22 train, platform 3.
plans Come to the side entrance at eight and wear the badge.
plans The board meets in secret on Sunday evening.
= Yusuf Darrow
access Payroll locked me out, my number is 10446.
access The locker code is 29-07-13, my things are inside.
access I gave the cleaner the master key, number 5.
access The cloud password is three words: copper, tunnel, egg.
access Use line 2 and say the word juniper.
health They found a shadow on the scan, more on Friday.
health I am on 50 mg now and feel much better.
health The therapist moved me to Thursdays at five.
health My daughter has chickenpox, keep your children away.
health I need a blood donor, type O negative.
money I was paid 2,315 instead of 2,135, should I say so?
money The garage wants 690 for the gearbox.
money Transfer 1,250 to the school by the 8th.
money My share of the sale is 27,000.
money Buy the tickets with my card, 44 each.
plans I see Lena at the cafe on Pell Street at one.
plans We leave for Tarn on the 21st, the dog stays with Orla.
plans My contract ends in May and I will not sign again.
plans Meet me at bench 9 in the botanic garden.
plans I testify on Wednesday, please look after the shop.
"""

_PATTERNS = (
    "please send {amount} to {who} before {when}",
    "my {secret} is {code}, do not tell {who}",
    "the {secret} for the {place} is {code}",
    "we meet at the {place} at {hour}, bring the {thing}",
    "I need the {thing} by {when}, can you leave it at the {place}?",
    "the doctor wants to see {who} {when} at {hour}",
    "{who} owes me {amount} for the {thing}",
    "I am at home until {when}, call me on {phone}",
    "tell {who} that I start the new job {when}",
    "I paid {amount} for the {thing} and want it back",
    "{who} takes {dose} mg in the morning and {dose} at night",
    "we leave for {town} {when} at {hour}",
    "the bank says that {amount} is missing from my account",
    "my test was {result}, I see the doctor {when}",
    "use the side door of the {place}, the code is {code}",
    "can you fetch {who} from the station at {hour}?",
)

_SLOTS = {
    "who": "Arlo, Brigid, Casimir, Delphine, Emeka, Freya, Gustav, Hanneke, Imran, Jolanda, my "
    "mother, your brother, the neighbour, the plumber, everybody, the manager",
    "when": "on Monday, on Tuesday, on Wednesday, on Thursday, on Friday, on Saturday, on Sunday, "
    "tomorrow, next week, tonight, in the morning, this month, in May, in October",
    "place": "office, school, clinic, flat, garage, library, kitchen, cellar, shop, hotel, "
    "harbour, church, pool, gym, server room, bus stop",
    "thing": "keys, bag, box, ticket, parcel, laptop, car, bicycle, ring, camera, map, coat, book, "
    "phone, lamp, table, papers, card, list, badge",
    "secret": "password, pin, door code, login, wifi password, alarm code, card number, key code",
    "town": "Ansby, Corlow, Dunmere, Eskvale, Harrowgate Bay, Limberg, Northam, Velden",
    "result": "positive, negative, clear, better, worse, wrong, late",
    "word": "otter, maple, copper, river, candle, falcon, pepper, granite, velvet, orbit, thunder, "
    "pillow, saffron, walnut, meadow, anchor",
}


@functools.cache
def messages() -> tuple[tuple[str, str, str], ...]:
    """The sender, topic and text of each message: 8 senders with 20 messages, 5 on each topic."""
    found, sender = [], ""
    for line in _MESSAGES.strip().splitlines():
        if line.startswith("= "):
            sender = line[2:]
            continue
        topic, _, text = line.partition(" ")
        found.append((sender, topic, text))
    return tuple(found)


def _filled(rng: np.random.Generator) -> str:
    def one(slot: str) -> str:
        known = _SLOTS[slot].split(", ")
        return known[int(rng.integers(len(known)))]

    pattern = _PATTERNS[int(rng.integers(len(_PATTERNS)))]
    given = {slot: one(slot) for slot in _SLOTS}
    given["amount"] = str(int(rng.integers(10, 3000)))
    given["code"] = f"{one('word')}-{int(rng.integers(10, 9999))}"
    given["hour"] = f"{int(rng.integers(1, 13))}:{int(rng.integers(0, 12)) * 5:02d}"
    given["phone"] = f"555-{int(rng.integers(1000, 9999))}"
    given["dose"] = str(int(rng.integers(1, 20)) * 5)
    return pattern.format(**given)


@functools.cache
def public_messages() -> tuple[str, ...]:
    """2,000 different messages of the same kind; none of them is one of `messages`."""
    rng = numpy_generator(0, "public messages")
    found: dict[str, None] = {}
    while len(found) < PUBLIC:
        found[_filled(rng)] = None
    return tuple(found)
