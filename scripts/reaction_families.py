"""The textbook reaction families: SMILES templates and the substituents they are filled with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from reaction_groups import (
    ACCEPTORS,
    ALKYLS,
    ARYLS,
    BENZYL,
    BUTYL,
    DONORS,
    ETHYL,
    MILD,
    PHENETHYL,
    PRIMARY,
    PROPYL,
    Group,
)

Family = tuple[str, str, tuple[tuple[Group, ...], ...]]  # name, template, one set for each place

BOC = "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C"
YLIDE = "P(c1ccccc1)(c1ccccc1)c1ccccc1"
NITRIC = "O=[N+]([O-])O"
PERACID = "O=C(OO)c1cccc(Cl)c1"
# Directing groups as written (before, after) the ring.
PARA = (("C", "C"), ("CC", "CC"), ("CO", "OC"), ("CCO", "OCC"), ("CCC", "CCC"))
META = ("N#C", "COC(=O)", "O=C(O)", "O=C", "CC(=O)")
DIENOPHILES = (("C(C)=O", "CC(=O)"), ("C=O", "O=C"), ("C#N", "N#C"), ("C(=O)OC", "COC(=O)"))

TRAINED: tuple[Family, ...] = (
    (
        "esterification",
        "{1[hydroxy]}.{0[acid]}>>{1.tail}OC(=O){0.tail}",
        ((*ARYLS, PROPYL, BUTYL), (ETHYL, PROPYL)),
    ),
    ("ester hydrolysis", "{0[methyl_ester]}.[Na+].[OH-]>>{0[acid]}", ((*MILD, BENZYL),)),
    ("amide coupling", "CCN.{0[acid]}>>CCNC(=O){0.tail}", ((*ARYLS, BENZYL),)),
    ("amide coupling", "Nc1ccccc1.{0[acid]}>>{0[anilide]}", (ARYLS,)),
    ("aminolysis", "C1COCCN1.{0[acyl_chloride]}>>{0[morpholide]}", (ARYLS,)),
    ("aminolysis", "C1CCNCC1.{0[acyl_chloride]}>>{0[piperidide]}", (ARYLS,)),
    ("chlorination", "{0[acid]}.O=S(Cl)Cl>>{0[acyl_chloride]}", ((*ARYLS, PROPYL, BUTYL),)),
    (
        "Williamson ether synthesis",
        "{1[bromide]}.{0[hydroxy]}>>{1.tail}O{0.tail}",
        (ARYLS, (ETHYL, BUTYL)),
    ),
    (
        "Grignard addition",
        "{1.tail}[Mg]Br.{0[aldehyde]}>>{1.tail}C(O){0.tail}",
        (MILD, (ETHYL, BUTYL)),
    ),
    ("Suzuki coupling", "{0[bromide]}.OB(O)c1ccccc1>>{0[biphenyl]}", ((*DONORS, *ACCEPTORS),)),
    (
        "Suzuki coupling",
        "{0[bromide]}.OB(O)c1ccc(F)cc1>>{0[fluorobiphenyl]}",
        ((*DONORS, *ACCEPTORS),),
    ),
    ("Sonogashira coupling", "C#Cc1ccccc1.{0[iodide]}>>{0[phenylalkyne]}", (ARYLS,)),
    ("Buchwald amination", "C1COCCN1.{0[bromide]}>>{0[morpholine]}", ((*DONORS, *ACCEPTORS),)),
    ("aldehyde reduction", "{0[aldehyde]}.[BH4-].[Na+]>>{0[methanol]}", ((*ARYLS, *PRIMARY),)),
    ("ketone reduction", "{0[ketone]}.[BH4-].[Na+]>>{0[methyl_carbinol]}", ((*ARYLS, PHENETHYL),)),
    ("nitro reduction", "{0[nitro]}.[H][H]>>{0[amine]}", ((*DONORS, ACCEPTORS[1]),)),
    ("alcohol oxidation", "{0[methanol]}.O=[Mn]=O>>{0[aldehyde]}", (ARYLS,)),
    ("Wittig olefination", f"C={YLIDE}.{{0[aldehyde]}}>>{{0[alkene]}}", ((*ARYLS, PHENETHYL),)),
    ("Wittig olefination", f"CCOC(=O)C={YLIDE}.{{0[aldehyde]}}>>{{0[ethyl_acrylate]}}", (ARYLS,)),
    (
        "reductive amination",
        "{1[amine]}.{0[aldehyde]}.[BH3-]C#N.[Na+]>>{1.tail}NC{0.tail}",
        (ARYLS, (ETHYL, BUTYL)),
    ),
    ("substitution", "{0[bromide]}.[C-]#N.[Na+]>>{0[nitrile]}", (PRIMARY,)),
    ("substitution", "{0[bromide]}.[N-]=[N+]=[N-].[Na+]>>{0[azide]}", (PRIMARY,)),
    ("substitution", "{0[bromide]}.[I-].[Na+]>>{0[iodide]}", (PRIMARY,)),
    ("substitution", "{0[bromide]}.CC(=O)[O-].[Na+]>>{0[acetate]}", (PRIMARY,)),
    ("Boc protection", f"{BOC}.{{0[amine]}}>>{{0[boc_amine]}}", ((*ARYLS, *PRIMARY, BENZYL),)),
    ("tosylation", "Cc1ccc(S(=O)(=O)Cl)cc1.{0[amine]}>>{0[tosylamide]}", ((*ARYLS, PHENETHYL),)),
    ("acetylation", "CC(=O)OC(C)=O.{0[amine]}>>{0[acetamide]}", (ARYLS,)),
    ("acetylation", "CC(=O)OC(C)=O.{0[hydroxy]}>>{0[acetate]}", (ARYLS,)),
    ("aldol condensation", "CC(=O)c1ccccc1.{0[aldehyde]}>>{0[chalcone]}", (ARYLS,)),
    ("oxime formation", "NO.{0[aldehyde]}>>{0[oxime]}", (ARYLS,)),
    ("oxime formation", "{0[ketone]}.NO>>{0[ketoxime]}", (ARYLS,)),
    ("azide-alkyne cycloaddition", "C#Cc1ccccc1.{0[azide]}>>{0[phenyltriazole]}", (PRIMARY,)),
    ("epoxidation", f"{{0[alkene]}}.{PERACID}>>{{0[epoxide]}}", (MILD,)),
    (
        "aromatic substitution",
        "{0[amine]}.O=[N+]([O-])c1ccc(F)cc1>>{0[nitroaniline]}",
        ((*PRIMARY, BENZYL),),
    ),
    *(
        ("nitration", f"{before}c1ccccc1.{NITRIC}>>{before}c1ccc([N+](=O)[O-])cc1", ())
        for before, _ in PARA
    ),
    *(
        ("nitration", f"{before}c1ccccc1.{NITRIC}>>{before}c1cccc([N+](=O)[O-])c1", ())
        for before in META
    ),
    *(
        ("Diels-Alder", f"C=CC=C.C=C{after}>>{before}C1CC=CCC1", ())
        for after, before in DIENOPHILES
    ),
    *(
        ("Diels-Alder", f"C=C(C)C(=C)C.C=C{after}>>{before}C1CCC(C)=C(C)C1", ())
        for after, before in DIENOPHILES
    ),
    ("Diels-Alder", "C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12", ()),
    ("Diels-Alder", "C1=CCC=C1.O=C1C=CC(=O)O1>>O=C1OC(=O)C2C3C=CC(C3)C12", ()),
    *(
        (
            "Friedel-Crafts acylation",
            f"{acyl}Cl.{before}c1ccccc1.Cl[Al](Cl)Cl>>{acyl}c1ccc({after})cc1",
            (),
        )
        for before, after in PARA
        for acyl in ("CC(=O)", "CCC(=O)")
    ),
)

HELD_OUT: tuple[Family, ...] = (
    ("Grignard addition to ketone", "{0[ketone]}.C[Mg]Br>>{0[dimethyl_carbinol]}", (MILD,)),
    ("Heck coupling", "C=CC(=O)OC.{0[iodide]}>>{0[acrylate]}", (ARYLS,)),
    ("ester reduction", "{0[ethyl_ester]}.[AlH4-].[Li+]>>{0[methanol]}", ((*MILD, *PRIMARY),)),
    ("ketone formation", "{0[methyl_carbinol]}.O=[Cr](=O)=O>>{0[ketone]}", ((*ARYLS, PHENETHYL),)),
    ("Boc deprotection", "{0[boc_amine]}.O=C(O)C(F)(F)F>>{0[amine]}", ((*ARYLS, PHENETHYL),)),
    ("imine formation", "Nc1ccccc1.{0[aldehyde]}>>{0[phenylimine]}", (ARYLS,)),
    ("hydrogenation", "{0[acrylate]}.[H][H]>>{0[propionate]}", ((*MILD, PHENETHYL),)),
    ("urea formation", "{0[amine]}.O=C=Nc1ccccc1>>{0[phenylurea]}", ((*ARYLS, *ALKYLS),)),
    *(("bromination", f"{before}c1ccccc1.BrBr>>{before}c1ccc(Br)cc1", ()) for before, _ in PARA),
)


def filled(family: Family) -> Iterator[tuple[bool, str]]:
    """Yield (uses a held-out substituent, reaction) for every choice of substituents."""
    _, template, sets = family
    for groups in product(*sets):
        yield any(group.held_out for group in groups), template.format(*groups)
